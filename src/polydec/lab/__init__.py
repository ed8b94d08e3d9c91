"""What makes, measures and attacks models and methods: training, benchmarks, contracts, fuzzers. Nothing of it decodes."""
