"""The engine that runs requests: configuration, scheduler, batch, runner, models, sampler, tokenizer and server."""
