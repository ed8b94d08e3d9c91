"""An HTTP server that speaks OpenAI's API: `pip install polydec[serve]`, then `polydec serve`. Nothing else imports it."""
