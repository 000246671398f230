package meter

import (
	"bytes"
	"fmt"
	"testing"
)

// chunk is a typical event of an OpenAI stream, 215 bytes.
func chunk(text string) []byte {
	return fmt.Appendf(nil, `data: {"id":"chatcmpl-9f2c6d1e8b7a4053","object":"chat.completion.chunk","created":1790001000,`+
		`"model":"lantern-7b-0412","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}],"usage":null}`+"\n\n", text)
}

func BenchmarkWrite(b *testing.B) {
	events := [][]byte{chunk(" harbour"), chunk(" the"), chunk("."), chunk(" lantern")}
	for name, o := range map[string]Options{"chunk": {ContentType: sse}, "chunk-hide": {ContentType: sse, HideUsage: true}} {
		b.Run(name, func(b *testing.B) {
			m := New(o)
			b.ReportAllocs()
			b.SetBytes(int64(len(events[0])))
			for i := 0; b.Loop(); i++ {
				m.Write(events[i%4], false)
			}
		})
	}
	b.Run("chunk-read-in-full", func(b *testing.B) {
		m := New(Options{ContentType: sse})
		b.ReportAllocs()
		for b.Loop() {
			m.Write(events[0][:100], false)
			m.Write(events[0][100:], false)
		}
	})
	b.Run("usage", func(b *testing.B) {
		usage := bytes.Replace(events[0], []byte(`"usage":null`), []byte(`"usage":{"prompt_tokens":12,"completion_tokens":11,"total_tokens":23}`), 1)
		m := New(Options{ContentType: sse})
		b.ReportAllocs()
		for b.Loop() {
			m.Write(usage, false)
		}
	})
	b.Run("answer-of-450-events", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m := New(Options{ContentType: sse})
			for i := range 450 {
				m.Write(events[i%4], false)
			}
			if m.Facts().TextTokens < 450 {
				b.Fatal("text lost")
			}
			m.Close()
		}
	})
}
