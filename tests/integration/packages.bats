#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What can be tested of packages and manifests without building them. BUILD is the build directory (default: build).

setup() {
	here=$(cd "$(dirname "$BATS_TEST_FILENAME")" && pwd)
	BUILD=$(cd "${BUILD:-$here/../../build}" && pwd)
	scripts=$here/../../scripts
	dir=$(mktemp -d)
}

teardown() {
	rm -rf "$dir"
}

# matches FILE PATTERN...
matches() {
	local file=$1 pattern
	shift
	for pattern in "$@"; do
		# shellcheck disable=SC2053 # a pattern
		[[ $file != $pattern && $file != $pattern/* ]] || return 0
	done
	return 1
}

@test "every installed file is in a Debian package" {
	mapfile -t patterns < <(sed 's|^usr/||' "$scripts"/debian/*.install "$scripts/debian/not-installed")
	prefix=$(meson introspect "$BUILD" --buildoptions |
		python3 -c 'import json, sys; print(*(o["value"] for o in json.load(sys.stdin) if o["name"] == "prefix"))')
	meson introspect "$BUILD" --installed |
		python3 -c 'import json, sys; print(*json.load(sys.stdin).values(), sep="\n")' >"$dir/installed"
	[ "$(wc -l <"$dir/installed")" -gt 20 ]
	while IFS= read -r file; do
		echo "$file"
		matches "${file#"$prefix/"}" "${patterns[@]}"
	done <"$dir/installed"
}

@test "the versions of the packages agree" {
	version=$(meson introspect "$BUILD" --projectinfo | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
	grep -qx "version = \"$version\"" "$scripts/../client/python/pyproject.toml"
	[ "$(grep -rhoE 'image: ncclsvc:[^ ]*' "$scripts/container" | sort -u)" = "image: ncclsvc:$version" ]
}

@test "a manifest with a wrong field, selector or volume is refused" {
	/usr/bin/python3 "$scripts/check-manifests"
	manifest=$scripts/container/daemonset.yaml
	sed 's/hostPID/hostPid/' "$manifest" >"$dir/field.yaml"
	sed '0,/matchLabels/s/matchLabels: {app: ncclsvcd}/matchLabels: {app: other}/' "$manifest" >"$dir/selector.yaml"
	sed 's/name: tmp, mountPath/name: temporary, mountPath/' "$manifest" >"$dir/volume.yaml"
	for fault in "field:has no field hostPid" "selector:the selector does not select" "volume:temporary, which is no volume"; do
		run /usr/bin/python3 "$scripts/check-manifests" "$dir/${fault%%:*}.yaml"
		echo "$output"
		[ "$status" -eq 1 ]
		[[ $output == *"${fault#*:}"* ]]
	done
}

@test "scripts/package refuses a bad revision and unknown options" {
	for arguments in "--revision" "--revision x/y" "--unknown" "a b"; do
		# shellcheck disable=SC2086 # several arguments
		run "$scripts/package" $arguments
		[ "$status" -ne 0 ]
	done
}
