#!/usr/bin/env bash
# Reads what pip prints and shows one growing line in place of hundreds.
count=0
while IFS= read -r line; do
    case $line in
    Collecting* | Requirement\ already*)
        count=$((count + 1))
        if ((count % 10 == 0)); then printf '.'; fi
        ;;
    Installing\ collected*)
        printf '\n   all are here; unpacking them takes pip half a minute without a word ...'
        ;;
    Successfully\ installed*) printf ' done' ;;
    ERROR*) printf '\n%s' "$line" ;;
    esac
done
printf '\n'
