"""torchferry beside other servers: workloads, turns, findings, tables."""
