"""The fields that OpenAI's API, vLLM's server and llama.cpp's server take, by route, and why some are refused here.

What happens to each is not written down: it is read off the code that takes, ignores or refuses fields, for the docs' table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"

_OPENAI_SAMPLING = (
    "frequency_penalty logit_bias logprobs n presence_penalty seed stop stream stream_options "
    "temperature top_p user"
)
_VLLM_SAMPLING = (
    "use_beam_search top_k min_p repetition_penalty watermarking length_penalty "
    "stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids "
    "prompt_logprobs logprob_token_ids bad_words"
)
_VLLM_BESIDE = (
    "add_special_tokens response_format structured_outputs guided_json guided_regex "
    "guided_grammar guided_choice guided_decoding_backend guided_whitespace_pattern priority "
    "request_id session_id return_tokens_as_token_ids return_token_ids "
    "routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt "
    "kv_transfer_params ec_transfer_params vllm_xargs repetition_detection "
    "thinking_token_budget stream_interval logits_processors logit_processors detokenize"
)
_LLAMA = (
    "temperature dynatemp_range dynatemp_exponent top_k top_p min_p top_n_sigma n_predict "
    "n_indent n_keep n_discard n_cmpl n_cache_reuse max_tokens stream stop typical_p "
    "repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier dry_base "
    "dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability "
    "xtc_threshold mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay grammar "
    "grammar_lazy grammar_triggers preserved_tokens json_schema seed ignore_eos logit_bias "
    "n_probs min_keep t_max_predict_ms id_slot cache_prompt return_tokens samplers "
    "timings_per_token return_progress sse_ping_interval post_sampling_probs response_fields "
    "lora reasoning_budget_tokens thinking_budget_tokens"
)

_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "OpenAI": {
            CHAT: (
                _OPENAI_SAMPLING,
                "audio function_call functions max_completion_tokens max_tokens messages metadata "
                "modalities model moderation parallel_tool_calls prediction prompt_cache_key "
                "prompt_cache_options prompt_cache_retention reasoning_effort response_format "
                "safety_identifier service_tier store tool_choice tools top_logprobs verbosity "
                "web_search_options",
            ),
            TEXT: (_OPENAI_SAMPLING, "best_of echo max_tokens model prompt suffix"),
            RESPONSES: (
                "access_programs background background_options context_management conversation image "
                "include input instructions max_output_tokens max_tool_calls metadata model moderation "
                "parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options "
                "prompt_cache_retention reasoning safety_identifier service_tier store stream "
                "stream_options temperature text tool_choice tools top_logprobs top_p truncation user",
            ),
            EMBEDDINGS: ("dimensions encoding_format input model user",),
        },
        "vLLM": {
            CHAT: (
                _VLLM_SAMPLING,
                _VLLM_BESIDE,
                "echo add_generation_prompt continue_final_message documents chat_template "
                "chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text "
                "include_reasoning reasoning_effort",
            ),
            TEXT: (_VLLM_SAMPLING, _VLLM_BESIDE, "prompt_embeds"),
            RESPONSES: (
                "logit_bias top_k skip_special_tokens include_stop_str_in_output request_id "
                "mm_processor_kwargs priority cache_salt enable_response_messages previous_input_messages "
                "previous_response structured_outputs repetition_penalty seed stop ignore_eos vllm_xargs",
            ),
            EMBEDDINGS: (
                "truncate_prompt_tokens add_special_tokens priority request_id normalize use_activation "
                "embed_dtype endianness cache_salt mm_processor_kwargs messages chat_template "
                "chat_template_kwargs add_generation_prompt continue_final_message",
            ),
        },
        "llama.cpp": {
            CHAT: (
                _LLAMA,
                "chat_template_kwargs reasoning_effort reasoning_format reasoning_control "
                "parse_tool_calls parallel_tool_calls add_generation_prompt",
            ),
            TEXT: (_LLAMA,),
            RESPONSES: (),
            EMBEDDINGS: ("content embd_normalize",),
        },
    }
)

_PLACES = "this server has no such places: it writes and reads text"
_KEPT = "nothing is kept here between requests but caches and stored responses"
_INSIDE = "it is a matter of that engine's inside"
_NO_OTHER_PROMPT = "a prompt is read whole, or refused"
REASONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("audio", "image", "media_io_kwargs", "mm_processor_kwargs", "return_mm_kwargs"),
            _PLACES,
        ),
        **dict.fromkeys(
            (
                *("background_options", "context_management", "prompt_cache_options"),
                *("prompt_cache_retention", "previous_response", "session_id", "id_slot"),
            ),
            _KEPT,
        ),
        **dict.fromkeys(
            (
                *("kv_transfer_params", "ec_transfer_params", "vllm_xargs", "use_activation"),
                *("routed_experts_prompt_start", "guided_decoding_backend", "logits_processors"),
                *("n_keep", "n_discard", "n_cache_reuse", "grammar_lazy", "grammar_triggers"),
                *("preserved_tokens", "samplers", "reasoning_control", "parse_tool_calls"),
                *("previous_input_messages", "enable_response_messages", "access_programs"),
            ),
            _INSIDE,
        ),
        "truncation_side": _NO_OTHER_PROMPT,
        "web_search_options": "this server calls no tools itself",
        "max_tool_calls": "this server calls no tools itself",
        "moderation": "nothing is moderated here",
        "prediction": "give the text to a method that copies, such as prompt-lookup",
        "verbosity": "put it into the messages",
        "prompt_embeds": "vectors stand among the ids of a prompt here",
        "documents": "put them into the messages",
        "chat_template": "the template is the model's own: send text to /v1/completions",
        "return_prompt_text": "/tokenize tells what is read",
        "return_token_ids": "polydec true tells the tokens",
        "return_tokens": "polydec true tells the tokens",
        "return_tokens_as_token_ids": "polydec true tells the tokens",
        "return_token_offsets": "logprobs of /v1/completions have offsets",
        "logprob_token_ids": "top_logprobs lists the likeliest ones",
        "repetition_detection": "repetition_penalty, dry_multiplier and no_repeat_ngram_size keep from repeating",
        "n_predict": "say max_tokens",
        "n_cmpl": "say n",
        "repeat_penalty": "say repetition_penalty",
        "repeat_last_n": "penalties look at the whole text",
        "json_schema": "say guided_json or response_format",
        "n_probs": "say logprobs",
        "content": "say input",
        "normalize": "say normalised",
        "embd_normalize": "say normalised",
        "mirostat": "min_p and top_n_sigma keep a text lively",
        "mirostat_tau": "there is no mirostat",
        "mirostat_eta": "there is no mirostat",
        "stream_interval": "each writing is sent at once",
        "sse_ping_interval": "a stream is not kept alive by comments",
        "lora": "an adapter is loaded with its model",
        "response_fields": "an answer has all of its fields",
        "timings_per_token": "polydec true tells the figures",
        "return_progress": "polydec true tells the figures",
        "post_sampling_probs": "log-probabilities are the model's",
        "t_max_predict_ms": "--max-seconds bounds a request",
    }
)
"""Why a field is refused that another server takes; those without a reason are unknown."""


def fields_of(engine: str, path: str) -> frozenset[str]:
    """List the fields that an engine takes on a route.

    Args:
        engine: Name of the engine, one of ENGINES.
        path: Path of the route, one of PATHS.

    Returns:
        Names of the fields; none where the engine has no such route.
    """
    # Names stand in texts, many to a line, and are cut apart here.
    return frozenset(" ".join(_NAMES[engine][path]).split())


ENGINES = tuple(_NAMES)
PATHS = (CHAT, TEXT, RESPONSES, EMBEDDINGS)
