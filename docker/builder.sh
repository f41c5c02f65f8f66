#!/bin/sh
# builder.sh DATA ROOT [OPTION of grace build]...: run hourly.sh now, then once an hour.
# A build that fails changes nothing that is served. The container's log has its output.
set -u
while true; do
  hourly.sh "$@" || echo "this hour's build failed with code $?; the next one starts on time" >&2
  sleep $((${BUILD_SECONDS:-3600} - $(date +%s) % ${BUILD_SECONDS:-3600}))
done
