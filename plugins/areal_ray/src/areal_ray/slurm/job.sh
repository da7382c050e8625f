#!/bin/bash
# A run of areal, written by `areal slurm`: a Ray cluster on the nodes of this job, and the run on it.
@DIRECTIVES@

# What was asked for.
run_file=@RUN_FILE@
overrides=(@OVERRIDES@)
run_folder=@RUN_FOLDER@
# 1: go on with what the run folder holds, also the first time.
goes_on=@GOES_ON@
# 1: a run that was stopped goes back to the queue.
requeue=@REQUEUE@
# Further options of srun, such as a container image.
step=(@STEP@)
# What starts a command on a node, such as apptainer exec.
inside=(@INSIDE@)
# The folder of `areal` and `ray`; empty where they are on the PATH.
programs=@PROGRAMS@
# So many seconds before its time is up the run is told.
notice_s=@NOTICE@
# So many seconds until every node has joined.
patience_s=300

say() { printf 'areal slurm: %s\n' "$@" >&2; }

# On every node, once: Ray, until this script says USR1. Slurm's own TERM goes to every step, but to the run it means
# "save your state", for which it needs its workers: here it does nothing.
node() {
    local scratch=/tmp/areal-$SLURM_JOB_ID-$SLURMD_NODENAME ray status=1
    local options=(--block --disable-usage-stats --temp-dir="$scratch" --object-store-memory=1073741824
        --num-cpus="$SLURM_CPUS_ON_NODE" --num-gpus="${SLURM_GPUS_ON_NODE:-0}")
    if [[ ! -e $run_file || ! -d $run_folder ]]; then
        say "node $SLURMD_NODENAME does not see the run folder $run_folder, or $run_file" \
            "  why: their disk is not that of the machine the job was submitted on" \
            "  fix: out=FOLDER on a disk that all nodes share; of a container: mount it, --container-option"
        return 1
    fi
    if [[ $SLURMD_NODENAME == "$head" ]]; then
        options+=(--head --node-ip-address="${address%:*}" --port="${address##*:}" --include-dashboard=false)
    else
        options+=(--address="$address")
    fi
    rm -rf "$scratch" && mkdir -m 700 "$scratch" || return 1
    trap : TERM
    "${inside[@]}" ray start "${options[@]}" >"$scratch/start" 2>&1 &
    ray=$!
    trap 'stopped=1; kill -TERM "$ray"' USR1
    while wait "$ray"; status=$?; kill -0 "$ray" 2>/dev/null; do :; done
    if [[ -z ${stopped:-} ]]; then
        say "Ray ended on node $SLURMD_NODENAME with status $status:"
        tail -n 20 "$scratch/start" >&2
    fi
    rm -rf "$scratch"
    [[ -n ${stopped:-} ]] || (( SECONDS > 60 )) # one that never was there ends them all; a run may go on without one
}

# On the first node, once: the run, when all nodes are there.
run() {
    local joined=0
    until (( joined == SLURM_JOB_NUM_NODES )); do
        if (( SECONDS > patience_s )); then
            say "$joined of $SLURM_JOB_NUM_NODES nodes joined the Ray cluster within $patience_s s" \
                "  why: the others' lines are above" \
                "  fix: look whether they reach $address; the run did not begin"
            return 1
        fi
        sleep 1
        joined=$("${inside[@]}" ray status --address="$address" 2>/dev/null | grep --count '^ *1 node_')
    done
    export RAY_DISABLE_FAILURE_SIGNAL_HANDLER=1 # it ends a process three seconds after TERM: too short to save a state
    exec "${inside[@]}" areal train "$run_file" "${overrides[@]}" "${resume[@]}" \
        scheduler.backend=ray scheduler.options.address="$address"
}

# The address the other nodes reach this one at: Slurm's, looked up here where it is a name.
own_address() {
    local name
    name=$(scontrol show node "$SLURMD_NODENAME" --oneliner | sed 's/.* NodeAddr=\([^ ]*\).*/\1/')
    if [[ $name =~ ^[0-9.]+$ ]]; then echo "$name"; return; fi
    getent ahostsv4 "$name" | awk '$1 !~ /^127\./ { print $1; exit }'
}

free_port() {
    local port
    for port in $(shuf --input-range=20000-32000 --head-count=50); do
        if ! (exec 3<>"/dev/tcp/$1/$port") 2>/dev/null; then echo "$port"; return; fi
    done
}

# A step of this job that runs one of the functions above.
start() {
    local name=$1
    shift
    srun --export=ALL --overlap --cpu-bind=none --kill-on-bad-exit=1 --wait=0 --job-name="areal-$name" "$@" "${step[@]}" \
        bash -c "$(declare -p address head inside overrides patience_s resume run_file run_folder)
$(declare -f say node run); $name" &
}

steps_named() { squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' | awk -v name="$1" '$2 == name { print $1 }'; }

# Ask the run to stop and to save its state. scancel complains of the nodes that its step is not on.
stop_run() { steps_named areal-run | xargs --no-run-if-empty scancel --signal=TERM 2>/dev/null; }

steps_done() { { wc --lines <"$run_folder/metrics.jsonl"; } 2>/dev/null; }

end_cluster() {
    local _
    kill -USR1 "$nodes" 2>/dev/null
    for _ in {1..20}; do kill -0 "$nodes" 2>/dev/null || break; sleep 1; done
    kill -TERM "$nodes" 2>/dev/null # srun kills what is left
    wait "$nodes" 2>/dev/null
}

# Before the time limit, or earlier if the site tells of preemption in the same way.
told() {
    local left_s
    left_s=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%L |
        awk -F: '/[^0-9:]/ { print 999999; exit } { for (i = 1; i <= NF; i++) s = 60 * s + $i; print s }')
    (( left_s > notice_s + 60 )) || time_is_up=1
    stop_run
}

time_is_up=0
trap told USR1 # Slurm, to this script alone
trap : TERM    # Slurm, at the end: it has told the steps itself
[[ -z $programs ]] || export PATH=$programs:$PATH
RAY_AUTH_TOKEN=$(od --address-radix=n --read-bytes=32 --format=x1 /dev/urandom | tr --delete ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
head=$SLURMD_NODENAME
address=$(own_address)
if [[ -z $address ]]; then
    say "the address of node $head is not known" "  why: its name leads to this node alone" \
        "  fix: have it in the name service, or as NodeAddr in slurm.conf"
    exit 1
fi
address=$address:$(free_port "$address")

resume=(out="$run_folder")
if [[ -e $run_folder/events.jsonl ]] && (( goes_on || ${SLURM_RESTART_COUNT:-0} )); then
    resume=(--resume "$run_folder")
    say "the run goes on with what $run_folder holds"
fi
steps_before=$(steps_done)

start node --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1
nodes=$!
trap end_cluster EXIT
start run --nodes=1 --ntasks=1 --nodelist="$head"
run=$!
while kill -0 "$run" 2>/dev/null; do
    if ! kill -0 "$nodes" 2>/dev/null; then
        say "there is no cluster for the run"
        kill -TERM "$run" # srun kills it
        break
    fi
    sleep 1
done
wait "$run"
status=$?
end_cluster

state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
if (( requeue && (status == 130 || status == 143) )) && [[ $state == RUNNING ]]; then # else it is Slurm that ends it
    if (( time_is_up )) && [[ $(steps_done) == "$steps_before" ]]; then
        say "the run made no step in all its time, so it is not put back into the queue; give it more: --time"
    else
        say "the run was stopped and goes back to the queue"
        trap exit TERM # Slurm ends this script to run it again
        scontrol requeue "$SLURM_JOB_ID" && { sleep 60 & wait $!; }
    fi
fi
exit "$status"
