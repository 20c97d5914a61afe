"""The engine on a GPU: passes that run on their own while the host prepares the next.

- `port.py` is all that is asked of a device: copies that do not wait, downloads that can be waited for, graphs.
- `buckets.py` says in which padded shape a pass runs; `graphs.py` records passes of such shapes, the first time each is
  needed; `inputs.py` puts all that a pass reads into one array, so that one copy brings it over.
- `runner.py` submits passes; `sampler.py` starts their draws and takes the results when they are there.
- `choose.py` decides which device, or says why it cannot be used; `memory.py` how many pages fit.

Nothing here waits for the device but `Download.wait`, and nothing but a commit calls that.
"""
