# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Functions that the scripts share. They source it after setting only `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [ -t 1 ]; then
	bold=$(printf '\033[1m') plain=$(printf '\033[0m')
else
	bold='' plain=''
fi

say() {
	printf '%s== %s%s\n' "$bold" "$*" "$plain"
}

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# The commit of this checkout or bundle.
commit() {
	cat "$root/COMMIT" 2>/dev/null || git -C "$root" describe --always --dirty 2>/dev/null || echo unknown
}

# Describes the machine and its system, as lines of Markdown.
machine() {
	local cpu
	cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
	cat <<-END
		- machine: ${cpu:-unknown CPU}, $(nproc) cores, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) memory
		- system: $( (. /etc/os-release && echo "$PRETTY_NAME") ), Linux $(uname -r), $(mpirun --version 2>/dev/null | head -n 1 || true)
	END
}

jobs() {
	nproc 2>/dev/null || echo 2
}

# configure DIR [MESON-ARGUMENT...]: creates a build directory unless there is a usable one.
configure() {
	local dir=$1 log
	shift
	if [ -f "$dir/build.ninja" ] && [ -f "$dir/meson-private/coredata.dat" ]; then
		return 0
	fi
	# A directory left by an interrupted setup would pass for a build directory.
	rm -rf "$dir"
	log=$(mktemp)
	if ! meson setup "$dir" "$root" "$@" >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

# One build with clang and sanitizers, in build-sanitized/, for warnings at -O3, tests and fuzzing.
# shellcheck disable=SC2034,SC2054 # scripts use it; meson separates sanitizers by commas
sanitized=(--buildtype=release -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false -Dmpi=disabled
	-Dman=disabled -Dc_args=-fno-sanitize-recover=all)

# compile DIR [TARGET...]: prints nothing unless it fails.
compile() {
	local dir=$1 log
	shift
	log=$(mktemp)
	if ! timeout 1200 ninja -C "$dir" "$@" >"$log" 2>&1; then # compilers have hung
		tail -n 60 "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

# end_process PID: terminates a child of this shell, and kills it after 20 s. Returns its exit code.
end_process() {
	kill "$1" 2>/dev/null || true
	for _ in $(seq 200); do
		kill -0 "$1" 2>/dev/null || break
		sleep 0.1
	done
	kill -KILL "$1" 2>/dev/null || true
	wait "$1" 2>/dev/null
}
