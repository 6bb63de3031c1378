"""The fault campaign's parts: stand-in services, proxies between processes, callers, and what is done to them."""
