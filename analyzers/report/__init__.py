"""How a diagnosis is told: text, json, html."""
