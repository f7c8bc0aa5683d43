# curl, as `clients.py` runs it.
ask() { curl --silent --show-error --fail --noproxy '*' -H "authorization: Bearer $KEY" "$BASE/$1" --data "$2"; }
messages='[{"role": "user", "content": "Why is the sky blue?"}]'
chat=$(ask chat/completions "{\"messages\": $messages}") || exit 1
response=$(ask responses '{"input": "Why is the sky blue?"}') || exit 1
stream=$(ask chat/completions "{\"messages\": $messages, \"stream\": true}") || exit 1
[ "${stream##*data: }" = "[DONE]" ] || exit 1
printf '{"chat": "%s", "responses": "%s"}\n' \
    "$(sed 's/.*"content":"\([^"]*\)".*/\1/' <<< "$chat")" "$(sed 's/.*"text":"\([^"]*\)"}\].*/\1/' <<< "$response")"
