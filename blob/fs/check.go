package fs

import (
	"context"

	"github.com/holdfast-dev/holdfast/blob"
)

var _ blob.Checker = (*Driver)(nil)

// Check implements blob.Checker. A folder has no settings: it is there or not.
func (d *Driver) Check(ctx context.Context) ([]blob.Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.present(); err != nil {
		return nil, err
	}
	return []blob.Finding{
		{Level: blob.OK, Setting: "store", Text: "the folder " + d.root + " is an object store of this version"},
		{Level: blob.OK, Setting: "lifecycle", Text: "Holdfast itself removes what is never finalized"},
	}, nil
}
