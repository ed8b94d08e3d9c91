"""Commands of the lab: what `polydec` has besides those of the engine."""

COMMANDS = {
    "verify": "Certify that a method keeps its promise.",
    "bench": "Time methods side by side.",
    "cache-cost": "Measure what each way to make a cache smaller costs your model on your text.",
    "harness": "Run lm-evaluation-harness on a model and a method.",
    "demo": "Decode real prompts greedily by every method.",
    "train": "Train language models and drafts; an interrupted run goes on where it was.",
}
"""By name, what a list of commands says of each."""
