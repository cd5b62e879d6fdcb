# SPDX-License-Identifier: Apache-2.0
# bash completion for ncclsvc-perf

_ncclsvc_perf()
{
	local cur prev word words operation=
	local operations='all_reduce all_gather reduce_scatter broadcast reduce alltoall gather
		scatter sendrecv barrier sessions join crossover'
	local common='--spawn-daemon --socket --rounds --timeout --json --help --version'
	cur=${COMP_WORDS[COMP_CWORD]}
	prev=${COMP_WORDS[COMP_CWORD - 1]}
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case " ${operations//[$'\n\t']/ } " in
		*" $word "*) operation=$word ;;
		esac
	done

	case $operation in
	'') words="$operations $common" ;;
	sessions) words="$common --count --no-ring" ;;
	crossover)
		words="--write --ranks --gpus --minbytes --maxbytes --iters --warmup_iters --rounds --time-cap
			--timeout --json --help --version"
		;;
	join) words="$common --ranks --nodes --no-ring --device --gpus" ;;
	*)
		words="$common --minbytes --maxbytes --stepbytes --stepfactor --iters --check
			--warmup_iters --datatype --op --root --ranks --nodes --time-cap
			--every --latency --queued --baseline --no-ring --device --gpus --memory --blocks --copy-engines --sync --compute-ms
			--graph --kernel --plot"
		[ "$operation" != sendrecv ] || words+=' --plan'
		[ "$operation" != all_gather ] || words+=' --list'
		;;
	esac

	case $prev in
	-d | --datatype)
		words='int8 uint8 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 float8e4m3
			float8e5m2 all'
		;;
	-o | --op) words='sum prod min max avg all' ;;
	--baseline) words='mpi nccl pingpong none' ;;
	--device) words='host cuda' ;;
	--sync) words='each stream last' ;;
	--socket | --json | --write | --plot)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	-[beifnwcr] | --minbytes | --maxbytes | --stepbytes | --stepfactor | --iters | \
		--warmup_iters | --check | --root | --ranks | --rounds | --time-cap | --timeout | \
		--count | --queued | --gpus | --compute-ms | --graph | \
		--every)
		return
		;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -o default -F _ncclsvc_perf ncclsvc-perf
