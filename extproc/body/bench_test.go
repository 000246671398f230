package body

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/policy"
)

func chatOf(size int, text string) []byte {
	var w strings.Builder
	w.WriteString(`{"model":"lantern-7b","messages":[{"role":"system","content":"You are a harbour pilot."}`)
	for i := 0; w.Len() < size-200; i++ {
		fmt.Fprintf(&w, `,{"role":"%s","content":"%s"}`, []string{"user", "assistant"}[i%2], strings.Repeat(text, 500/len(text)))
	}
	w.WriteString(`],"max_tokens":256,"temperature":0.2,"stream":true,"stream_options":{"include_usage":true}}`)
	return []byte(w.String())
}

func BenchmarkParse(b *testing.B) {
	const english = `The tide turned, and \"Grey Heron\" left the pier.\n`
	for _, c := range []struct {
		name, text string
		size       int
	}{{"2KB", english, 2 << 10}, {"32KB", english, 32 << 10}, {"32KB-CJK", "清晨的港口，雾很浓。", 32 << 10}} {
		data := chatOf(c.size, c.text)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := Parse(policy.OpenAIChat, data); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"-encoding/json", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				var v struct {
					Model     string
					Stream    bool
					MaxTokens int `json:"max_tokens"`
					Messages  []struct{ Role, Content string }
				}
				if err := json.Unmarshal(data, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRewrite(b *testing.B) {
	body, err := Parse(policy.OpenAIChat, chatOf(2<<10, "plain words "))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		body.Rewrite(SetInt("max_tokens", 64), IncludeUsage())
	}
}
