// Thread block clusters: the part that the kernels use; see cuda_runtime.h here.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

struct ClusterGroup {
  unsigned block_rank() const { return emulated::self->block->rank; }
  unsigned num_blocks() const { return emulated::self->block->cluster->blocks; }
  void sync() const { emulated::self->block->cluster->barrier.wait(); }

  template <typename T>
  T* map_shared_rank(T* own, unsigned rank) const {
    auto& cluster = *emulated::self->block->cluster;
    const auto offset = reinterpret_cast<unsigned char*>(own) - emulated::self->block->memory.get();
    return reinterpret_cast<T*>(cluster.memories[rank] + offset);
  }
};

inline ClusterGroup this_cluster() { return {}; }

}  // namespace cooperative_groups
