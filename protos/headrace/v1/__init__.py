"""The contracts: protobuf messages and gRPC services, generated from the `.proto` files beside this one."""
