"""The published methods: how each family decodes, and every recipe that composes its parts."""
