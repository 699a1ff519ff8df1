// Package policy decides what a principal may do, by identity policies in AWS's JSON
// policy language.
//
// A policy is a list of statements. One applies to a request when its actions, its
// resources and all its conditions do. A request is allowed when a statement that
// allows applies and none that denies does; what nobody allows is denied.
//
// The language is taken as far as the door can answer for it: [Parse] refuses every
// element, operator, condition key and variable that it does not know, because a
// policy of which a part is ignored grants more, or less, than its author reads in it.
// Element and operator names are case-sensitive here; condition keys and actions are
// not.
//
//	p, err := policy.Parse(document)
//	decision := policy.Decide(request, p, other)
//
// It knows nothing of accounts: who has which policies is its caller's to say.
package policy
