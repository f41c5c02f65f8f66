"""The online service: requests in over gRPC, four stages, the ads of each out.

`messages.py` has what is handed from stage to stage, `stages.py` what each does, `pipeline.py` the
threads and streams they run on, `front_end.py` the calls, and `life_cycle.py` start, drain and end.
"""
