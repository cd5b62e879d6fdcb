# bash completion for ncclsvc-ctl                                     -*- shell-script -*-
# SPDX-License-Identifier: Apache-2.0

# The first column of a table (but not of a sentence below it), from the daemon on the command line.
_ncclsvc_ctl_ids()
{
	ncclsvc-ctl "${socket[@]}" --timeout 1 "$@" 2>/dev/null |
		awk 'NR > 1 && $1 ~ /^[0-9]+$/ && !/\.$/ { print $1 }'
}

_ncclsvc_ctl()
{
	local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
	local globals="--socket --json --timeout --help --version"
	local shown="status sessions comms tasks memory devices plan lateness why"
	local command="" watched="" target="" words="" i
	local -a socket=()
	COMPREPLY=()

	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--socket)
			socket=(--socket "${COMP_WORDS[i + 1]}")
			((i++))
			;;
		--timeout | --node | --comm | --job | --rank | --pid | --state | --stuck | --limit | --sort | --after | --since | \
			--interval | --count | -n | --world | --local-size | --data | --horizontal | --pipeline | --pytorch)
			((i++))
			;;
		-*) ;;
		*)
			if [[ -z $command ]]; then
				command=${COMP_WORDS[i]}
			elif [[ $command == watch ]]; then
				watched=${COMP_WORDS[i]}
			else
				target=${COMP_WORDS[i]}
			fi
			;;
		esac
	done

	case $previous in
	--socket | --pytorch)
		mapfile -t COMPREPLY < <(compgen -f -- "$current")
		return
		;;
	--state) words="queued waiting-group waiting-peers waiting-input launched done failed" ;;
	--sort) words="comm age" ;;
	--node) words="local all" ;;
	--comm) words=$(_ncclsvc_ctl_ids comms --node local) ;;
	--timeout | --job | --rank | --pid | --stuck | --limit | --after | --since | --interval | --count | -n | \
		--world | --local-size | --data | --horizontal | --pipeline) return ;;
	*)
		case $command in
		"") words="$shown failures doctor groups dump cancel drain resume watch version help $globals" ;;
		cancel)
			case $target in
			"") words="task comm session $globals" ;;
			task) words=$(_ncclsvc_ctl_ids tasks --node local) ;;
			comm) words=$(_ncclsvc_ctl_ids comms --node local) ;;
			session) words=$(_ncclsvc_ctl_ids sessions) ;;
			esac
			;;
		watch)
			words="--interval --count $globals"
			[[ -z $watched ]] && words+=" $shown"
			command=${watched:-tasks}
			;;
		*) words=$globals ;;
		esac
		case $command in
		tasks) words+=" --node --comm --job --rank --pid --state --stuck --sort --limit" ;;
		comms) words+=" --node --all --members --comm --job" ;;
		sessions) words+=" --node --job" ;;
		devices) words+=" --node" ;;
		lateness) words+=" --node --comm" ;;
		memory) words+=" --node --pid" ;;
		plan) words+=" --node --comm --rank" ;;
		why) words+=" --node --after --lines" ;;
		failures) words+=" --node --since --follow --comm --job" ;;
		drain) words+=" --wait" ;;
		dump) words+=" --comm --rank --pid --pytorch" ;;
		groups) words+=" --world --local-size --data --horizontal --pipeline --rank" ;;
		esac
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -F _ncclsvc_ctl ncclsvc-ctl
