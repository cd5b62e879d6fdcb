# SPDX-License-Identifier: Apache-2.0
# bash completion for ncclsvc-perf

_ncclsvc_perf()
{
	local cur prev word operation=
	local operations='all_reduce all_gather reduce_scatter broadcast reduce alltoall gather
		scatter sendrecv barrier submit sessions idle'
	local common='--spawn-daemon --socket --rounds --no-ring --timeout --json --device --help
		--version'
	cur=${COMP_WORDS[COMP_CWORD]}
	prev=${COMP_WORDS[COMP_CWORD - 1]}
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case " ${operations//[$'\n\t']/ } " in
		*" $word "*) operation=$word ;;
		esac
	done

	case $prev in
	-d | --datatype)
		COMPREPLY=($(compgen -W 'int8 uint8 int32 uint32 int64 uint64 float16 bfloat16 float32
			float64 all' -- "$cur"))
		return
		;;
	-o | --op)
		COMPREPLY=($(compgen -W 'sum prod min max avg all' -- "$cur"))
		return
		;;
	-z | --blocking)
		COMPREPLY=($(compgen -W '0 1' -- "$cur"))
		return
		;;
	--baseline)
		COMPREPLY=($(compgen -W 'mpi none' -- "$cur"))
		return
		;;
	--device)
		COMPREPLY=($(compgen -W 'host' -- "$cur"))
		return
		;;
	--socket | --json)
		COMPREPLY=($(compgen -f -- "$cur"))
		return
		;;
	-[beifnwcr] | --minbytes | --maxbytes | --stepbytes | --stepfactor | --iters | \
		--warmup_iters | --check | --root | --ranks | --rounds | --time-cap | --timeout | \
		--count | --seconds | --queued)
		return
		;;
	esac

	case $operation in
	'') COMPREPLY=($(compgen -W "$operations $common" -- "$cur")) ;;
	submit)
		COMPREPLY=($(compgen -W "$common --iters --while-listing --seconds --queued" \
			-- "$cur"))
		;;
	sessions) COMPREPLY=($(compgen -W "$common --count" -- "$cur")) ;;
	idle) COMPREPLY=($(compgen -W "$common --count --seconds" -- "$cur")) ;;
	*)
		COMPREPLY=($(compgen -W "$common --minbytes --maxbytes --stepbytes --stepfactor --iters
			--warmup_iters --check --datatype --op --root --blocking --ranks --time-cap
			--baseline --plain-memory" -- "$cur"))
		;;
	esac
}
complete -o default -F _ncclsvc_perf ncclsvc-perf
