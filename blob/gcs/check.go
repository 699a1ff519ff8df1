package gcs

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-dev/holdfast/blob"
)

// lifecycleDays is the age at which the bucket removes what was never finalized.
const lifecycleDays = int64(blob.UnfinalizedLifetime / (24 * time.Hour))

// LifecyclePolicy returns the bucket's rule that removes what was never finalized, as
// JSON for "gcloud storage buckets update gs://bucket --lifecycle-file=FILE". That
// command replaces all rules of the bucket. Rules cannot look at metadata; the custom
// time of a finalized object keeps it from the rule for ever.
func LifecyclePolicy() string {
	return fmt.Sprintf(`{
  "rule": [
    {
      "action": {"type": "Delete"},
      "condition": {"daysSinceCustomTime": %d}
    }
  ]
}
`, lifecycleDays)
}

// Check implements blob.Checker. It reads the bucket's rules, versioning, soft
// deletion and retention.
func (d *Driver) Check(ctx context.Context) ([]blob.Finding, error) {
	if err := d.present(ctx); err != nil {
		return nil, fmt.Errorf("gcs: check bucket %s: %w", d.name, err)
	}
	attrs, err := d.bucket.Attrs(ctx)
	if status := statusOf(err); status == http.StatusForbidden || status == http.StatusUnauthorized {
		return []blob.Finding{{
			Level: blob.Note, Setting: "rights",
			Text: "the bucket's settings cannot be read: grant storage.buckets.get (roles/storage.bucketViewer) for this check",
		}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("gcs: check bucket %s: read its settings: %w", d.name, err)
	}
	findings := checkRules(attrs.Lifecycle.Rules)
	return append(findings, checkProtection(attrs)...), nil
}

// checkRules says whether the rules remove what was never finalized, in time and
// nothing else.
func checkRules(rules []storage.LifecycleRule) []blob.Finding {
	var findings []blob.Finding
	ours := false
	for i, rule := range rules {
		if rule.Action.Type != storage.DeleteAction {
			continue
		}
		c := rule.Condition
		switch {
		case onlyOld(c):
		case c.DaysSinceCustomTime == 0 && c.CustomTimeBefore.IsZero():
			findings = append(findings, problem(
				"rule %d deletes objects by their age or name, finalized ones too: remove it", i+1))
		case c.CustomTimeBefore.After(blob.FinalizedTime):
			findings = append(findings, problem("rule %d deletes finalized objects: remove it", i+1))
		case c.DaysSinceCustomTime == 0:
			findings = append(findings, note(
				"rule %d deletes what was put before %s, as long as it was not finalized", i+1, c.CustomTimeBefore.Format(time.DateOnly)))
		case c.DaysSinceCustomTime < lifecycleDays:
			findings = append(findings, problem(
				"rule %d deletes after %d days what may still be finalized: set daysSinceCustomTime to %d", i+1, c.DaysSinceCustomTime, lifecycleDays))
			ours = ours || unlimited(c)
		case !unlimited(c):
			findings = append(findings, note(
				"rule %d deletes what was never finalized, but only some of it: it has further conditions", i+1))
		case c.DaysSinceCustomTime > lifecycleDays:
			findings = append(findings, note(
				"rule %d deletes what was never finalized only after %d days", i+1, c.DaysSinceCustomTime))
			ours = true
		default:
			findings = append(findings, blob.Finding{Level: blob.OK, Setting: "lifecycle", Text: fmt.Sprintf(
				"rule %d deletes after %d days what was never finalized", i+1, lifecycleDays)})
			ours = true
		}
	}
	if !ours {
		findings = append(findings, problem(
			"no rule deletes what is never finalized, so that it stays and costs for ever: set the lifecycle policy"))
	}
	return findings
}

// onlyOld reports whether the condition holds for replaced or deleted versions only.
func onlyOld(c storage.LifecycleCondition) bool {
	return c.Liveness == storage.Archived || c.DaysSinceNoncurrentTime > 0 || !c.NoncurrentTimeBefore.IsZero() || c.NumNewerVersions > 0
}

// unlimited reports whether the condition is one of the custom time alone.
func unlimited(c storage.LifecycleCondition) bool {
	return c.AgeInDays == 0 && c.CreatedBefore.IsZero() && c.CustomTimeBefore.IsZero() &&
		len(c.MatchesPrefix) == 0 && len(c.MatchesSuffix) == 0 && len(c.MatchesStorageClasses) == 0
}

// checkProtection looks at what keeps deleted objects, or keeps objects from deletion.
func checkProtection(attrs *storage.BucketAttrs) []blob.Finding {
	var findings []blob.Finding
	if attrs.VersioningEnabled {
		findings = append(findings, blob.Finding{Level: blob.Note, Setting: "versioning",
			Text: "deleted objects stay as old versions: they cost until a rule for old versions deletes them"})
	}
	if p := attrs.SoftDeletePolicy; p != nil && p.RetentionDuration > 0 {
		findings = append(findings, blob.Finding{Level: blob.Note, Setting: "soft delete",
			Text: fmt.Sprintf("deleted objects can be restored, and cost, for %v", p.RetentionDuration)})
	}
	if p := attrs.RetentionPolicy; p != nil && p.RetentionPeriod > 0 {
		findings = append(findings, blob.Finding{Level: blob.Problem, Setting: "retention",
			Text: fmt.Sprintf("nothing can be deleted before it is %v old, so that deletions fail: remove the retention policy", p.RetentionPeriod)})
	}
	if attrs.DefaultEventBasedHold {
		findings = append(findings, blob.Finding{Level: blob.Problem, Setting: "holds",
			Text: "new objects are born with a hold, so that deletions fail: remove the default event-based hold"})
	}
	return findings
}

func problem(format string, args ...any) blob.Finding {
	return blob.Finding{Level: blob.Problem, Setting: "lifecycle", Text: fmt.Sprintf(format, args...)}
}

func note(format string, args ...any) blob.Finding {
	return blob.Finding{Level: blob.Note, Setting: "lifecycle", Text: fmt.Sprintf(format, args...)}
}
