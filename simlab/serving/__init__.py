"""Real engines behind one protocol: vLLM, transformers, llama.cpp, HTTP; probe, calibrate, train on them."""
