package storage

import (
	"strconv"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/expiry"
	"github.com/holdfast-dev/holdfast/kv/key"
)

// ChangeTables returns how the rows with links appear in change records, by
// space. The names and key columns are those of the public service's tables.
func ChangeTables() map[string]changes.Table {
	return map[string]changes.Table{
		SpaceRecords: {Name: "bsos", Keys: recordColumns},
		SpaceStaged:  {Name: changes.StagedTable, Keys: stagedColumns, Permanent: permanentRow},
	}
}

// ExpirySpaces returns how rows with an expiry are removed, by space.
// sync_bso_order is not among them: its rows go with those of bsos.
func ExpirySpaces() map[string]expiry.Space {
	return map[string]expiry.Space{
		SpaceRecords: {Table: SpaceRecords, Remove: removeExpiredRecord},
		SpaceBatches: {Table: SpaceBatches, Remove: removeExpiredBatch, Rows: 1},
	}
}

func recordColumns(k []byte) ([]changes.Field, error) {
	r := key.NewReader(k)
	p, id := readPlace(r), r.String()
	return append(p.columns(), changes.Field{Name: "bso_id", Value: id}), r.Done()
}

func stagedColumns(k []byte) ([]changes.Field, error) {
	p, batch, id, err := readStaged(k)
	return append(p.columns(), changes.Field{Name: "batch_id", Value: batch}, changes.Field{Name: "batch_bso_id", Value: id}), err
}

// permanentRow returns where the link of a staged row goes when its batch is
// committed.
func permanentRow(k []byte) (space string, permanent []byte, err error) {
	p, _, id, err := readStaged(k)
	return SpaceRecords, p.recordKey(id), err
}

func readStaged(k []byte) (p place, batch, id string, err error) {
	r := key.NewReader(k)
	p, batch, id = readPlace(r), r.String(), r.String()
	return p, batch, id, r.Done()
}

// columns returns the columns that both tables share.
func (p place) columns() []changes.Field {
	account := p.user.FxaUID
	if !p.user.byAccount() {
		account = p.user.ObjectPrefix()
	}
	return []changes.Field{
		{Name: "fxa_uid", Value: account},
		{Name: "fxa_kid", Value: p.user.FxaKID},
		{Name: "collection_id", Value: strconv.FormatUint(uint64(p.collection), 10)},
	}
}
