#!/bin/sh
# builder.sh ADS TARGETING ROOT [OPTION of grace build]...: run hourly.sh now, then once an hour.
# An hour that fails leaves the current version as it was, and its lines in the container's log.
set -u
while true; do
  hourly.sh "$@" || echo "this hour's build failed with code $?; the next one starts on time" >&2
  sleep $((${BUILD_SECONDS:-3600} - $(date +%s) % ${BUILD_SECONDS:-3600}))
done
