"""The residual quantiser of faiss on the same items. faiss is no dependency: pip install faiss-cpu."""
def faiss_rows(*a): yield from ()
