#include "grace/abi.h"

#include <cstdio>

#ifndef GRACE_SOURCE_DIGEST
#error "build through `python -m grace.native.build`, which names the sources' digest"
#endif

namespace grace {

namespace {
thread_local char last_error[512] = "";
}

void set_last_error(const char* text) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", text);
}

}  // namespace grace

GRACE_API const char* grace_source_digest() { return GRACE_SOURCE_DIGEST; }

GRACE_API const char* grace_last_error() { return grace::last_error; }
