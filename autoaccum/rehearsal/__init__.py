"""Plans for GPUs that are not here: the workload is rehearsed on a virtual one."""
