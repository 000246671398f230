package meter

// node is a place in the answers of the supported APIs, by the path of names
// that leads to it.
type node uint8

const (
	nodeRoot node = iota // the document
	nodeNone             // of no interest, with all below it
	nodeItem             // an element of a document that is an array (batches)

	// usage, in any of its places
	nodeUsage
	nodeUsageStart   // of Anthropic's message_start: its output is no count yet
	nodeUsageBeside  // where another usage object may say the same: Groq's x_groq, Moonshot's choices
	nodeInputParts   // prompt_tokens_details, input_tokens_details
	nodeOutputParts  // completion_tokens_details, output_tokens_details
	nodeMeta         // SGLang's meta_info
	nodeDetails      // TGI's details
	nodeInput        // counts
	nodeOutput       //
	nodeTotal        //
	nodeCached       // part of the input
	nodeCacheWrite   // part of the input
	nodeCacheRead    // beside the input (Anthropic)
	nodeCacheCreate  // beside the input (Anthropic)
	nodeReasoning    // part of the output
	nodeCountedInput // input_tokens of a counting call

	// the answer
	nodeChoices
	nodeChoice
	nodeChoiceIndex
	nodeFinish
	nodeDelta // delta or message of a choice
	nodeParts // content of a message: text, or a list of parts
	nodePart
	nodeCalls
	nodeCall
	nodeFunction
	nodeText     // delivered text
	nodeAllText  // delivered text, the whole of it so far
	nodeTGIText  // the same, at the end of a TGI stream
	nodeMessage  // of Anthropic's message_start
	nodeResponse // of the Responses API's events
	nodeRespText // delta of the Responses API, or Anthropic's delta
	nodeOutputs  // output of the Responses API
	nodeToken    // TGI's token
	nodeData     // embeddings
	nodeDatum
	nodeStop   // Anthropic's stop_reason
	nodeStatus // a word (Responses API) or a number (problem details)
	nodeIncomplete
	nodeReason
	nodeMetaFinish

	// errors
	nodeObject
	nodeType
	nodeError
	nodeErrorCode
	nodeErrorType
	nodeErrorKind // TGI's error_type
	nodeCode
	nodeDetail
	nodeTitle
	nodeGroq       // Groq's x_groq
	nodeBase       // MiniMax's base_resp
	nodeBaseStatus // its status_code: 0 is none
)

// elem is the node of an array's elements.
func elem(n node) node {
	switch n {
	case nodeRoot:
		return nodeItem
	case nodeChoices:
		return nodeChoice
	case nodeParts, nodePart:
		return nodePart
	case nodeCalls:
		return nodeCall
	case nodeOutputs:
		return nodeDelta
	case nodeData:
		return nodeDatum
	}
	return nodeNone
}

// child is the node of an object's member.
func child(n node, name []byte) node {
	switch n {
	case nodeRoot, nodeItem:
		return rootChild(name)
	case nodeUsage, nodeUsageStart, nodeUsageBeside, nodeMeta, nodeDetails:
		return usageChild(name)
	case nodeInputParts, nodeOutputParts:
		switch string(name) {
		case "cached_tokens":
			return nodeCached
		case "cache_write_tokens":
			return nodeCacheWrite
		case "reasoning_tokens":
			return nodeReasoning
		}
	case nodeChoice, nodeDelta, nodePart, nodeRespText, nodeCall, nodeFunction, nodeToken:
		return answerChild(n, name)
	case nodeMessage:
		if string(name) == "usage" {
			return nodeUsageStart
		}
	case nodeResponse:
		switch string(name) {
		case "usage":
			return nodeUsage
		case "error":
			return nodeError
		case "incomplete_details":
			return nodeIncomplete
		}
	case nodeIncomplete:
		if string(name) == "reason" {
			return nodeReason
		}
	case nodeGroq:
		switch string(name) {
		case "usage":
			return nodeUsageBeside
		case "error":
			return nodeError
		}
	case nodeBase:
		if string(name) == "status_code" {
			return nodeBaseStatus
		}
	case nodeMetaFinish:
		switch string(name) {
		case "type":
			return nodeMetaFinish
		case "status_code":
			return nodeErrorCode
		}
	case nodeError:
		switch string(name) {
		case "code", "status":
			return nodeErrorCode
		case "type":
			return nodeErrorType
		}
	}
	return nodeNone
}

func rootChild(name []byte) node {
	switch string(name) {
	case "choices":
		return nodeChoices
	case "usage":
		return nodeUsage
	case "object":
		return nodeObject
	case "error":
		return nodeError
	case "type":
		return nodeType
	case "delta":
		return nodeRespText
	case "response":
		return nodeResponse
	case "message":
		return nodeMessage
	case "content":
		return nodeParts
	case "output":
		return nodeOutputs
	case "data":
		return nodeData
	case "text":
		return nodeAllText
	case "text_output":
		return nodeText
	case "token":
		return nodeToken
	case "generated_text":
		return nodeTGIText
	case "meta_info":
		return nodeMeta
	case "details":
		return nodeDetails
	case "stop_reason":
		return nodeStop
	case "status":
		return nodeStatus
	case "incomplete_details":
		return nodeIncomplete
	case "input_tokens":
		return nodeCountedInput
	case "code", "error_code":
		return nodeCode
	case "detail":
		return nodeDetail
	case "title":
		return nodeTitle
	case "error_type":
		return nodeErrorKind
	case "x_groq":
		return nodeGroq
	case "base_resp":
		return nodeBase
	}
	return nodeNone
}

func usageChild(name []byte) node {
	switch string(name) {
	case "prompt_tokens", "input_tokens", "input_length":
		return nodeInput
	case "completion_tokens", "output_tokens", "generated_tokens":
		return nodeOutput
	case "total_tokens":
		return nodeTotal
	case "prompt_tokens_details", "input_tokens_details":
		return nodeInputParts
	case "completion_tokens_details", "output_tokens_details":
		return nodeOutputParts
	case "prompt_cache_hit_tokens", "cached_tokens":
		return nodeCached
	case "cache_read_input_tokens":
		return nodeCacheRead
	case "cache_creation_input_tokens":
		return nodeCacheCreate
	case "reasoning_tokens":
		return nodeReasoning
	case "finish_reason":
		return nodeMetaFinish
	}
	return nodeNone
}

// answerChild is the node of a member of the answer proper.
func answerChild(n node, name []byte) node {
	switch string(name) {
	case "text", "thinking", "partial_json", "reasoning_content", "reasoning", "refusal", "name", "arguments", "transcript":
		return nodeText
	case "content":
		return nodeParts
	case "tool_calls":
		return nodeCalls
	case "function", "function_call", "audio":
		return nodeFunction
	case "stop_reason":
		if n == nodeRespText {
			return nodeStop
		}
	case "delta", "message":
		if n == nodeChoice {
			return nodeDelta
		}
	case "index":
		if n == nodeChoice {
			return nodeChoiceIndex
		}
	case "finish_reason":
		if n == nodeChoice {
			return nodeFinish
		}
	case "error":
		if n == nodeChoice {
			return nodeError
		}
	case "usage":
		if n == nodeChoice {
			return nodeUsageBeside
		}
	}
	return nodeNone
}
