package memstore_test

import (
	"testing"

	"github.com/weirproxy/weir/quota"
	"github.com/weirproxy/weir/quota/memstore"
	"github.com/weirproxy/weir/quota/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) quota.Store {
		s := memstore.New(memstore.Options{})
		t.Cleanup(func() { s.Close() })
		return s
	})
}
