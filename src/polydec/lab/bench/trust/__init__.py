"""DecodingTrust's perspectives: does another way of decoding change what a model may be trusted
with? One file each.

Source: Wang et al., DecodingTrust: a comprehensive assessment of trustworthiness in GPT models,
2023. Words of prompts, the lexicon of toxicity and the sample are ours.
"""
