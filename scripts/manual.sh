#!/usr/bin/env bash
# manual.sh man|completion GALVANI: prints the manual page, or the completion for bash. Both are made from what `GALVANI COMMAND --help`
# prints, which comes from the program's own table of options.
set -euo pipefail

kind=$1 galvani=$2
commands=$("$galvani" --help | sed -nE 's/^  ([a-z]+) {2,}.*/\1/p')

# One item a line: command, kind (usage, section, text, item), and two fields. An item is "  what it is   what it does".
list_items() {
    for command in $commands; do
        "$galvani" "$command" --help | awk -v command="$command" '
            BEGIN { OFS = "\t" }
            /^usage: / { print command, "usage", substr($0, 8), ""; next }
            /^$/ { next }
            /^  / {
                sub(/^  /, "")
                if (!match($0, /  +/)) { print "no two columns in: " $0 > "/dev/stderr"; exit 1 }
                print command, "item", substr($0, 1, RSTART - 1), substr($0, RSTART + RLENGTH)
                next
            }
            { print command, /\.$/ ? "text" : "section", $0, "" }' || return
    done
}

print_man() {
    local version
    version=$("$galvani" --version | awk '$1 == "galvani" { print $2 }')
    cat <<END
.TH GALVANI 1 "" "galvani $version" "User Commands"
.SH NAME
galvani \\- run Qwen3.8-Flash-Next from HDF5 shards on tensor\\-parallel ranks
.SH SYNOPSIS
.B galvani
.I COMMAND
.RI [ options ]
.br
.B mpirun \\-np
.I T
.B galvani run \\-\\-model
.I DIR
.B \\-\\-prompt
.I TEXT
.SH DESCRIPTION
galvani converts a Hugging Face checkpoint to one HDF5 file a rank, generates text from it on T MPI ranks, and leaves in a run file
where the time of every token went.
.SH COMMANDS
END
    "$galvani" --help | sed -nE 's/^  ([a-z]+) {2,}(.*)/.TP\n.B \1\n\2/p' | escape
    list_items | awk -F '\t' '
        function escaped(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.'\'']/, "\\&&", text); return text }
        $1 != command { command = $1; print ".SH GALVANI " toupper(command) }
        $2 == "usage" { print ".B " escaped($3) }
        $2 == "text" { print ".PP\n" escaped($3) }
        $2 == "section" { print ".SS " escaped($3) }
        $2 == "item" { print ".TP\n.B " escaped($3) "\n" escaped($4) }'
    cat <<'END'
.SH EXIT STATUS
.TP
.B 0
done
.TP
.B 2
the command line or a config is wrong
.TP
.B 3
an input file is missing, damaged or of another model
.TP
.B 4
no memory
.TP
.B 5
a failure of a device, NCCL, MPI, a rank or an output file
.TP
.B 6
logits are NaN or infinite, or microbench found an operator's results wrong
.TP
.B 130
ended by a signal, with a whole run file
.PP
All ranks end together, and mpirun ends with that status.
.SH SIGNALS
SIGINT, SIGTERM, SIGUSR1 and SIGXCPU to rank 0 end the run after the step at work. mpirun gives its ranks one second when it gets SIGINT
or SIGTERM itself; SIGUSR1 it passes on, and the run ends in its own time.
.SH ENVIRONMENT
Variables configure the libraries only: OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, NCCL_*, OMPI_MCA_*, HDF5_USE_FILE_LOCKING.
.SH SEE ALSO
.BR mpirun (1),
.BR srun (1),
.BR h5dump (1)
END
}

escape() { sed -E '/^\./!s/-/\\-/g'; }

print_completion() {
    cat <<'END'
# Completion of galvani for bash. Where nothing is offered here, bash completes file names.
_galvani() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -*) ;;
        *)
            command=${COMP_WORDS[i]}
            break
            ;;
        esac
    done
    COMPREPLY=()
    case $command:$previous in
END
    # The choices of options that have some: in their argument, or behind the last colon of their description.
    list_items | awk -F '\t' '
        $2 == "item" && $3 ~ /^--[^ ]+ / {
            split($3, word, " ")
            choices = ""
            if (word[2] ~ /^[a-z0-9-]+(\|[a-z0-9-]+)+$/) choices = word[2]
            else if (match($4, /: [a-z0-9-]+(\|[a-z0-9-]+)*$/)) choices = substr($4, RSTART + 2)
            gsub(/\|/, " ", choices)
            if (choices) printf "    %s:%s) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")); return ;;\n", $1, word[1], choices
        }'
    cat <<'END'
    esac
    case $word in
    -*)
        case $command in
END
    list_items | awk -F '\t' '
        $2 == "item" && $3 ~ /^--/ { split($3, word, " "); options[$1] = options[$1] " " word[1] }
        END {
            for (command in options)
                printf "        %s) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")) ;;\n", command, substr(options[command], 2)
        }' | sort
    cat <<END
        "") COMPREPLY=(\$(compgen -W "--help --version" -- "\$word")) ;;
        esac
        return
        ;;
    esac
    [ -n "\$command" ] || COMPREPLY=(\$(compgen -W "$(echo $commands)" -- "\$word"))
END
    list_items | awk -F '\t' '
        $2 == "item" && $3 !~ /^--/ { split($3, word, " "); words[$1] = words[$1] " " word[1] }
        END {
            for (command in words) {
                printf "    [ \"$command:$previous\" != %s:%s ] || ", command, command
                printf "COMPREPLY=($(compgen -W \"%s\" -- \"$word\"))\n", substr(words[command], 2)
            }
        }'
    cat <<'END'
}
complete -o bashdefault -o default -F _galvani galvani
END
}

case $kind in
man) print_man ;;
completion) print_completion ;;
*)
    echo "manual.sh: \"$kind\" is neither man nor completion" >&2
    exit 2
    ;;
esac
