// Time spans of a view, by their names in its link.

export const SPANS = { "1 h": 3600, "24 h": 86_400, "7 d": 604_800, "30 d": 2_592_000 };
export const WORDS = { "1 h": "last hour", "24 h": "last 24 hours", "7 d": "last 7 days", "30 d": "last 30 days" };
