//go:build cgo && linux

package dcgm

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/dl"

	"github.com/weirproxy/weir/gpu/library"
)

// libraryName is what go-dcgm loads.
const libraryName = "libdcgm.so.4"

// called is every symbol of libdcgm that go-dcgm calls on behalf of this
// package, but dcgmConnect_v3, which it looks up itself.
func called() []string {
	return []string{
		"dcgmInit", "dcgmShutdown", "dcgmStartEmbedded", "dcgmStopEmbedded", "dcgmConnect_v2", "dcgmDisconnect",
		"dcgmGetEntityGroupEntities", "dcgmGetGpuInstanceHierarchy",
		"dcgmGroupCreate", "dcgmGroupAddEntity", "dcgmGroupDestroy", "dcgmFieldGroupCreate",
		"dcgmWatchFields", "dcgmUnwatchFields", "dcgmUpdateAllFields", "dcgmEntityGetLatestValues", "errorString",
	}
}

// symbols fails if the library is not there or lacks a symbol, for which the
// dynamic linker would end the process. The library is not closed again:
// addresses that the linker has bound stay good however often go-dcgm loads
// and unloads it.
func symbols() error {
	lib := dl.New(libraryName, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := lib.Open(); err != nil {
		return fmt.Errorf("%w: %w", ErrLibrary, err)
	}
	for _, s := range called() {
		if err := lib.Lookup(s); err != nil {
			return fmt.Errorf("%w: %w", library.ErrSymbol, err)
		}
	}
	return nil
}
