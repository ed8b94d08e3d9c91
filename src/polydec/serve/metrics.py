"""What Prometheus reads: the names that vLLM's dashboards know, and ours by method."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from polydec.request.engine import Ticket

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper edges of the buckets of times."""


class ServerMetrics:
    """Counters of one server; each model's carry its name."""

    def __init__(self) -> None:
        # A registry of its own, so that several servers in one process do not add up.
        self.registry = registry = CollectorRegistry()

        def new_gauge(name: str, what: str) -> Gauge:
            """Make a number that goes up and down, one for each model.

            Args:
                name: Its name.
                what: What it says.

            Returns:
                The gauge.
            """
            return Gauge(name, what, ["model_name"], registry=registry)

        def new_counter(name: str, what: str, *labels: str) -> Counter:
            """Make a number that only grows, one for each model.

            Args:
                name: Its name.
                what: What it counts.
                labels: Further labels.

            Returns:
                The counter.
            """
            return Counter(name, what, ["model_name", *labels], registry=registry)

        def new_histogram(name: str, what: str) -> Histogram:
            """Make a histogram of seconds, one for each model.

            Args:
                name: Its name.
                what: What is timed.

            Returns:
                The histogram.
            """
            return Histogram(name, what, ["model_name"], buckets=SECONDS, registry=registry)

        self.running = new_gauge("vllm:num_requests_running", "Requests that are being written")
        self.waiting = new_gauge("vllm:num_requests_waiting", "Requests that wait for their turn")
        # Names are vLLM's where it has the same figure, so that its dashboards work.
        self.usage = new_gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the caches' limit that is taken, 0 to 1; 0 without a limit",
        )
        self.cached = new_gauge("polydec:kv_cache_bytes", "Bytes of the caches of all requests")
        self.preempted = new_counter(
            "vllm:num_preemptions", "Requests that were put on hold to make room"
        )
        self.prompt_tokens = new_counter("vllm:prompt_tokens", "Tokens of prompts")
        self.generation_tokens = new_counter("vllm:generation_tokens", "Tokens written")
        self.success = new_counter("vllm:request_success", "Answers that ended", "finished_reason")
        self.first = new_histogram(
            "vllm:time_to_first_token_seconds", "From a request's arrival to its first token"
        )
        self.between = new_histogram(
            "vllm:inter_token_latency_seconds", "Between two writings of one request"
        )
        self.whole = new_histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its end"
        )
        self.queue = new_histogram("vllm:request_queue_time_seconds", "Waiting for the turn")
        self.decode = new_histogram(
            "vllm:request_decode_time_seconds", "From the first token to the last"
        )
        self.drafts = new_counter("vllm:spec_decode_num_drafts", "Passes with a draft")
        self.drafted = new_counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted")
        self.accepted = new_counter(
            "vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted"
        )
        self.accepted_at = new_counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted at a position or beyond",
            "position",
        )
        self.passes = new_counter(
            "polydec:target_passes", "Passes that a method's answers took part in", "method"
        )
        self.tokens = new_counter(
            "polydec:generation_tokens", "Tokens written by a method", "method"
        )
        self.drafted_by = new_counter(
            "polydec:draft_tokens", "Tokens drafted by a method", "method"
        )
        self.accepted_by = new_counter(
            "polydec:accepted_draft_tokens",
            "Drafted tokens of a method that were accepted",
            "method",
        )
        self.refused = new_counter(
            "polydec:requests_refused", "Requests that were not answered", "status"
        )
        self.cut = new_counter(
            "polydec:requests_cut", "Requests that ended before their answer did", "reason"
        )

    def count_ended_request(self, model: str, ticket: Ticket) -> None:
        """Count a request that has ended, as far as it came.

        Args:
            model: Name of the model.
            ticket: The request's ticket.
        """
        answer = ticket.completion()
        method = ticket.plan.card.name
        self.prompt_tokens.labels(model).inc(answer.usage["prompt_tokens"])
        self.generation_tokens.labels(model).inc(answer.usage["completion_tokens"])
        self.tokens.labels(model, method).inc(answer.usage["completion_tokens"])
        for choice in answer.choices:
            self.success.labels(model, choice.finish_reason).inc()
        for result in ticket.results:
            self._drafts(model, method, result.stats)

    def _drafts(self, model: str, method: str, stats: Any) -> None:
        """Families that draft count these; of the others only the passes are known."""
        # Every family counts its passes.
        self.passes.labels(model, method).inc(stats.passes)
        drafted = getattr(stats, "drafted", 0)
        accepted = getattr(stats, "accepted", 0)
        self.drafts.labels(model).inc(getattr(stats, "drafts", 0))
        self.drafted.labels(model).inc(drafted)
        self.accepted.labels(model).inc(accepted)
        self.drafted_by.labels(model, method).inc(drafted)
        self.accepted_by.labels(model, method).inc(accepted)
        for position, count in enumerate(getattr(stats, "accepted_at", ())):
            self.accepted_at.labels(model, str(position)).inc(count)

    def prometheus_text(self) -> bytes:
        """All of them as Prometheus takes it."""
        return generate_latest(self.registry)
