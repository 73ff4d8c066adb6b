"""What goes over the wire: frames, protobuf conversion, refusals as gRPC statuses, channels.

Stays out of this house: who says what and when.
"""
