"""Model shapes from the files that models are published with: Hugging Face ``config.json``, Mistral ``params.json``."""
