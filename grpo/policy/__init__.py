"""The model: loading, memory, sharding and sampling."""
