package e2e

import (
	"testing"

	"github.com/holdfast-dev/holdfast/e2e/program"
)

func TestMain(m *testing.M) { program.Main(m) }
