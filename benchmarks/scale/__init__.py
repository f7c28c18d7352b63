"""The data plane of many explorers: a cost model, synthetic senders, and the receivers under test."""
