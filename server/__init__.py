"""The online service: requests in over gRPC, four stages, the ads of each out.

`life_cycle.py` starts and ends it. `messages.py` has the types that pass from stage to stage,
`transport/front_end.py` the calls, `scheduling/pipeline.py` the threads, `scheduling/scheduler.py`
the queue, and `stages/stages.py` the work.
"""
