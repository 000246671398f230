// Package weir is the floor plan.
package weir
