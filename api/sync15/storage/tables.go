package storage

import (
	"strconv"

	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/expiry"
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

func recordColumns(k, value []byte) ([]changes.Field, error) {
	p, id, err := readRecordKey(k)
	return append(p.columns(value), changes.Field{Name: "bso_id", Value: id}), err
}

func stagedColumns(k, value []byte) ([]changes.Field, error) {
	p, batch, id, err := readStagedKey(k)
	return append(p.columns(value), changes.Field{Name: "batch_id", Value: batch}, changes.Field{Name: "batch_bso_id", Value: id}), err
}

// permanentRow returns where the link of a staged row goes when its batch is
// committed.
func permanentRow(k []byte) (space string, permanent []byte, err error) {
	p, _, id, err := readStagedKey(k)
	return SpaceRecords, p.recordKey(id), err
}

func readRecordKey(k []byte) (p place, id string, err error) {
	p, r, err := readPlace(k)
	if err != nil {
		return p, "", err
	}
	id = r.String()
	return p, id, r.Done()
}

func readStagedKey(k []byte) (p place, batch, id string, err error) {
	p, r, err := readPlace(k)
	if err != nil {
		return p, "", "", err
	}
	batch, id = r.String(), r.String()
	return p, batch, id, r.Done()
}

// columns returns the columns that both tables share; the account is in the value
// of a row with a link.
func (p place) columns(value []byte) []changes.Field {
	v := valueReader{rest: value}
	_, account, keyID := v.header()
	return []changes.Field{
		{Name: "fxa_uid", Value: account},
		{Name: "fxa_kid", Value: keyID},
		{Name: "collection_id", Value: strconv.FormatUint(uint64(p.collection), 10)},
	}
}
