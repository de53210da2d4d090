"""The gRPC gateway, over a broker that tests drive by hand."""
