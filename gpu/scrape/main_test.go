package scrape

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		servePages()
		return
	}
	goleak.VerifyTestMain(m)
}
