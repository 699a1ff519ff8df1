// Package spanner is the engine on Cloud Spanner.
package spanner
