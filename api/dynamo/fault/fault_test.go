package fault

import (
	"errors"
	"fmt"
	"testing"
)

func TestPrefixed(t *testing.T) {
	wrapped := fmt.Errorf("put: %w", Validation("%d%% of it", 5))
	if err := Prefixed("The key: ", wrapped); err.Error() != "ValidationException: The key: 5% of it" {
		t.Errorf("Prefixed of a validation fault: %v", err)
	}
	for _, err := range []error{Serialization(""), New("ResourceInUseException", "x"), errors.New("other")} {
		if got := Prefixed("p", err); got != err {
			t.Errorf("Prefixed changed %v to %v", err, got)
		}
	}
}

func TestTextWithoutArgumentsIsLiteral(t *testing.T) {
	if got := Validation("100%s").Error(); got != "ValidationException: 100%s" {
		t.Error(got)
	}
	if got := Serialization("").Error(); got != SerializationException {
		t.Error(got)
	}
}
